"""The engine in a process of its own: frames, the worker's main, the asyncio client."""
