"""What an operator sees in a browser: a page, and the feed that keeps it up to date."""
