// What Python sees of eager operators.
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace spyre::eager {

void add_eager(pybind11::module_& module);

} // namespace spyre::eager
