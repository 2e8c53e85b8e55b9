"""Starts a command under the sanitizer, follows its journals, and judges what they say."""
