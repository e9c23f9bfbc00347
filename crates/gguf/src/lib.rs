//! Read and write GGUF headers: where every tensor's bytes are, and what the metadata says.
