// What decides which program a call of an operator runs.
#pragma once

#include "bridge/host_kernel.h"
#include "card/operation.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace spyre::eager {

// A number or a tensor that a program takes at each launch.
struct ProgramArgument {
  enum class Kind : std::uint8_t { Tensor, Real, Whole };
  Kind kind;
  bool written = false;
  const at::Tensor* tensor = nullptr; // Tensor; belongs to the stack that was read
  std::uint64_t word = 0;             // the address of its first element, or the bits of the number
};

// A call of an operator, read from the stack.
//
// The *key* holds all that a program of the call is made for: dtypes, sizes and strides of the tensors, the
// device, and the values of arguments that are part of the program. The *arguments* are what differs between
// two calls of one key: where the tensors are, and the values of numbers.
//
// Numbers that a schema calls Scalar or float are arguments, and so is a Python number that stands for a
// tensor (`x + 0.5`). Whole numbers that may be dimensions or sizes, flags, texts and lists of numbers are in
// the key.
class Signature {
public:
  // What an operator's schema says of an argument.
  enum class Role : std::uint8_t {
    Read,    // a number would be part of the program
    Written, // a tensor
    Number,  // its value may differ from call to call
  };

  // Reads one value per role. Returns null, or why no program can run the call: a constant text.
  const char* read(const c10::IValue* values, const std::vector<Role>& roles);

  std::span<const std::int64_t> key() const { return {key_.data(), key_.size()}; }
  std::span<const ProgramArgument> arguments() const { return {arguments_.data(), arguments_.size()}; }
  c10::DeviceIndex device() const { return device_; }

private:
  const char* add(const c10::IValue& value, bool written, bool fixed_number);
  const char* add_tensor(const at::Tensor& tensor, bool written);
  const char* add_host_number(const at::Tensor& tensor);
  const char* add_list(const c10::IValue& value);
  void add_bits(std::int64_t tag, double value);
  const char* check_aliases() const;

  c10::SmallVector<std::int64_t, 48> key_;
  c10::SmallVector<ProgramArgument, 8> arguments_;
  c10::DeviceIndex device_ = -1;
};

} // namespace spyre::eager
