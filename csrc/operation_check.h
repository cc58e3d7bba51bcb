// What an operation may be, given the parts of its program.
#pragma once

#include <vector>

#include "program.h"

namespace headrace {

// The parts that operations name by index.
struct OperationScope {
  const Shape& shape;
  const std::vector<Buffer>& buffers;
  const std::vector<PackedMatrix>& matrices;
  const std::vector<std::vector<float>>& vectors;
  const std::vector<Rope>& ropes;
  int logits_buffer;
};

// Throws std::invalid_argument naming the kind of an operation that names parts which are missing or do not fit.
void CheckOperation(const OperationScope& scope, const Operation& op);

}  // namespace headrace
