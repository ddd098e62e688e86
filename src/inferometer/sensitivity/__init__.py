"""What moves what: parameters of a machine scaled one by one or until a target holds, and machines sized for a task."""
