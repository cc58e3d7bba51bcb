// How the attention of a batch is cut into units.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace headrace {

// Leaves the units in `units` and in `first_part` the index of each whole unit's first part, with one more entry for
// the end. If there are no more than `least_whole` whole units, too few to keep all threads busy, each is split into
// parts, one for each split of its context; says whether they are. Allocates nothing within the vectors' capacities.
bool PlanAttention(const AttentionTask& task, int num_sequences, size_t least_whole, std::vector<AttentionUnit>* units,
                   std::vector<int32_t>* first_part);

}  // namespace headrace
