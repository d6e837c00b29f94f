"""Surgery on groups of nodes that become one."""
