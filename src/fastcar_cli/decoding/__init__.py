"""The decode engine: step loop, KV cache, replay, sampling."""
