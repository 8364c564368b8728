"""How every part speaks to a person: tables that fit their terminal, progress, and answers to wrong names."""
