// The sampling half of the binding.
#pragma once

#include <nanobind/nanobind.h>

namespace headrace {

void BindSampling(nanobind::module_& m);

}  // namespace headrace
