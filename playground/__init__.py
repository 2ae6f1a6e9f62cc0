"""The coding playground: its page, its websocket, and the OpenAI-compatible API."""
