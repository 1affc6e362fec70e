// What Python sees of programs.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace spyre::programs {

// Adds `JobPlan` and `scalar_type` to the extension module.
void add_programs(pybind11::module_& module);

} // namespace spyre::programs
