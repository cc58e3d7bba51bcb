// The ops' inner loops, compiled once per instruction set and chosen once at start.
#pragma once

#include <string_view>

#include "ops/attention.h"
#include "ops/matmul.h"
#include "ops/rows.h"
#include "ops/sampling_kernels.h"

namespace headrace {

struct Kernels {
  const char* name;
  // ops/matmul.h
  MatmulPanelsFn matmul_panels;
  const int* max_tile_rows;      // [kMaxTilePanels], by tile_panels - 1; 0: no such tiles
  MatmulTunings matmul_tunings;  // what does well without being measured
  // ops/rows.inl
  void (*norm_row)(const float* x, const float* weight, float eps, int size, float* out);
  void (*quantize_row)(const float* x, int size, QuantizedRow out);
  void (*gate_row)(const float* gate, const float* up, Activation activation, int size, float* out);
  void (*store_row)(const RotaryTask& task, const KvView& kv, int slot, const float* qkv);
  void (*rotate_and_store)(const RotaryTask& task, const KvView& kv, int slot, const float* cosines, const float* sines,
                           float* qkv);
  // ops/attention.inl
  void (*attend_unit)(const AttentionTask& task, const AttentionUnit& unit, float* scratch, AttentionPartial* total);
  void (*finish_unit)(const AttentionTask& task, const AttentionUnit& unit, AttentionPartial* total,
                      const AttentionPartial* more, int count);
  SamplingKernels sampling;
  KvFormat half_kv;  // of the two 16-bit cache formats the one that it computes with faster
};

// The best set this CPU and operating system support.
const Kernels& BestKernels();

// The set of that name ("portable", "avx2", "avx512", "avx512_bf16"), or null if it is unknown or this machine lacks it.
const Kernels* KernelsNamed(std::string_view name);

}  // namespace headrace
