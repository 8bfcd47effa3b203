"""What people look at: tables, pictures, pages and the folder they are written to."""
