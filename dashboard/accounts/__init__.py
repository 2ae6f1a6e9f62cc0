"""Who may see and do what, and how they sign in."""
