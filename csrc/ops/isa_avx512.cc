// Ops for AVX-512 F, BW, DQ, VL and VNNI.
#define HEADRACE_ISA avx512
#define HEADRACE_ISA_NAME "avx512"

#include "vec.h"
// vec.h first: it settles the lanes
#include "isa.inl"
