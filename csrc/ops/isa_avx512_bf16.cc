// Ops for AVX-512 F, BW, DQ, VL, VNNI and BF16.
#define HEADRACE_ISA avx512_bf16
#define HEADRACE_ISA_NAME "avx512_bf16"

#include "vec.h"
// vec.h first: it settles the lanes
#include "isa.inl"
