"""What people see of every part: tables that fit their terminal, progress, and answers to wrong names."""
