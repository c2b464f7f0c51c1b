"""Numbers to text and JSON; nothing here decides anything."""
