"""The selector language: nodes and values by name, operator, scope, role, layer and path."""
