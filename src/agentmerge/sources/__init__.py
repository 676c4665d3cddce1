"""Who is read: whatever a user names as base or agent, opened as a Source."""
