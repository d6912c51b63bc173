"""What a generation loop is held to: its form, where it stops, its law, and that drafts count."""
