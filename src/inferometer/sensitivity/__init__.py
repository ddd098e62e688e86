"""What moves what: a machine's figures turned one by one or until a target holds, and machines sized for a task."""
