// Registers the Python types of the card's errors.
#pragma once

#include <torch/csrc/python_headers.h>

namespace spyre::bridge {

// Makes the exception types and adds them to the module. Called once, with the GIL.
void add_error_types(PyObject* module);

} // namespace spyre::bridge
