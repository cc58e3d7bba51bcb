// Ops for any CPU: what the compiler makes of the baseline (SSE2, NEON).
#define HEADRACE_ISA portable
#define HEADRACE_ISA_NAME "portable"

#include "vec.h"
// vec.h first: it settles the lanes
#include "isa.inl"
