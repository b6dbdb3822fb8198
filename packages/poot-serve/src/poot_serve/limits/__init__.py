"""What is checked of a request before anything of it is believed: head, body, JSON text."""
