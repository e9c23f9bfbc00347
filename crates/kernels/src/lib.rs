//! Quantised matrix products and the vector functions of a transformer, the same bits on every CPU level.
