// The part of the binding that times matrix products and carries their tunings.
#pragma once

#include <nanobind/nanobind.h>

#include <tuple>
#include <vector>

#include "ops/matmul.h"

namespace headrace {

// The tunings of one matrix, by row class: tile_rows, tile_panels, block_rows, piece_bytes.
using TuningNumbers = std::tuple<int, int, int, int>;
using TuningArguments = std::vector<TuningNumbers>;

// Raises ValueError if a matrix has too few or too many; the numbers themselves are the program's to judge.
std::vector<MatmulTunings> TuningsFrom(const std::vector<TuningArguments>& listed);

void BindTuning(nanobind::module_& m);

}  // namespace headrace
