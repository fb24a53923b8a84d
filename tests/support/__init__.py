"""What the black-box tests stand on: servers that are watched, users, false peers."""
