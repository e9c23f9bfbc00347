//! Llama-family models over streamed weights: tokenizer, forward pass, sampling, sessions.
