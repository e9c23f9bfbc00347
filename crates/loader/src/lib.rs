//! Hand out the chunks of files in a fixed cyclic order through a few slots of memory.
