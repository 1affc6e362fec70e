#include "bridge/errors.h"

#include "bridge/python_errors.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>

namespace spyre::bridge {
namespace {

// Created once, when the module is; never destroyed.
struct Types {
  PyObject* base = nullptr;
  PyObject* memory_fault = nullptr;
  PyObject* invalid_argument = nullptr;
  PyObject* shut_down = nullptr;
  PyObject* poisoned = nullptr;
  PyObject* deadlock = nullptr;
};
Types types;

class TypedError final : public torch::PyTorchError {
public:
  TypedError(PyObject* type, const std::string& text) : PyTorchError(text), type_(type) {}
  PyObject* python_type() override { return type_; }

private:
  PyObject* type_;
};

PyObject* type_of(const card::CardError& error) {
  if (dynamic_cast<const card::MemoryFault*>(&error) != nullptr)
    return types.memory_fault;
  if (dynamic_cast<const card::InvalidArgument*>(&error) != nullptr)
    return types.invalid_argument;
  if (dynamic_cast<const card::ShutDown*>(&error) != nullptr)
    return types.shut_down;
  if (dynamic_cast<const card::Poisoned*>(&error) != nullptr)
    return types.poisoned;
  if (dynamic_cast<const card::Deadlock*>(&error) != nullptr)
    return types.deadlock;
  return types.base;
}

PyObject* add_type(PyObject* module, const char* name, const char* doc, PyObject* bases) {
  const std::string full = std::string("torch.spyre.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases, nullptr);
  if (type == nullptr || PyModule_AddObjectRef(module, name, type) != 0)
    throw python_error();
  return type;
}

} // namespace

void throw_translated(const card::CardError& error) {
  if (dynamic_cast<const card::OutOfMemory*>(&error) != nullptr)
    TORCH_CHECK_WITH(OutOfMemoryError, false, "spyre out of memory: ", error.what());
  PyObject* type = type_of(error);
  TORCH_CHECK(type != nullptr, error.what());
  throw TypedError(type, error.what());
}

void add_error_types(PyObject* module) {
  types.base = add_type(module, "SpyreError", "A failure of the simulated card.", PyExc_RuntimeError);
  types.memory_fault =
      add_type(module, "MemoryFault", "An access outside of an allocation, or to one that is no longer live.",
               types.base);
  types.invalid_argument =
      add_type(module, "InvalidArgument", "An argument that no state of the card could accept.", types.base);
  types.shut_down =
      add_type(module, "ShutDown", "The runtime was shut down, or never could start.", types.base);
  types.poisoned = add_type(module, "Poisoned",
                            "Work was skipped because something it depended on failed first.", types.base);
  types.deadlock = add_type(module, "Deadlock",
                            "Waits that can never end; the text names streams and events.", types.base);
}

} // namespace spyre::bridge
