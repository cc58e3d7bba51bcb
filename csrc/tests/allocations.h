// How often operator new was called, so that a test can see that a run allocates nothing.
#pragma once

#include <cstddef>

namespace headrace::tests {

size_t NumAllocations();

}  // namespace headrace::tests
