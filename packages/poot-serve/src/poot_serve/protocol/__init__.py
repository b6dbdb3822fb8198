"""Wire types of the OpenAI API: what is read from a client and written to it."""
