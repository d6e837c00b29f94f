"""Types and shapes of values: inference, and what it lacks for operators of com.microsoft."""
