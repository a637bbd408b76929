"""The keys that encrypt the secrets of test databases."""

from app.base.encryption import KeyRing

TEST_KEY = "a key of tests that hides nothing"
TEST_KEYS = KeyRing([TEST_KEY])
