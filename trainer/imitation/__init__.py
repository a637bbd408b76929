"""Chats to imitate: from experts, from what was served, from files."""
