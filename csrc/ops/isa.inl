// The body of each per-ISA translation unit: every op, compiled for the flags of that unit.

#include "../kernels.h"
#include "attention.inl"
#include "matmul.inl"
#include "rows.inl"
#include "sampling.inl"

namespace headrace::HEADRACE_ISA {

extern const Kernels kKernels;
const Kernels kKernels = {
    .name = HEADRACE_ISA_NAME,
    .matmul_panels = MatmulPanels,
    .max_tile_rows = kMaxTileRows,
    .matmul_tunings = kMatmulTunings,
    .norm_row = NormRow,
    .quantize_row = QuantizeRow,
    .gate_row = GateRow,
    .store_row = StoreRow,
    .rotate_and_store = RotateAndStore,
    .attend_unit = AttendUnit,
    .finish_unit = FinishUnit,
    .sampling = kSamplingKernels,
#if defined(__AVX512BF16__)
    .half_kv = KvFormat::kBf16,
#else
    .half_kv = KvFormat::kF16,
#endif
};

}  // namespace headrace::HEADRACE_ISA
