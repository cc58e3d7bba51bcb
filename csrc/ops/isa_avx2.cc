// Ops for AVX2 with FMA and F16C.
#define HEADRACE_ISA avx2
#define HEADRACE_ISA_NAME "avx2"

#include "vec.h"
// vec.h first: it settles the lanes
#include "isa.inl"
