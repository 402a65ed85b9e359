"""`blink-server top`: the console's picture in a terminal, from the same feed."""
