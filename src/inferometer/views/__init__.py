"""What people see: terminal tables, pictures, files. Only views format."""
