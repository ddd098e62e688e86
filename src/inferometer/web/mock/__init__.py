"""A server that answers as a real one would: OpenAI's API, at the predicted speed."""
