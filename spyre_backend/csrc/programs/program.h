// A program as the card's compute engine holds it: decoded once, run at every launch.
#pragma once

#include "card/device.h"
#include "programs/library.h"
#include "programs/text.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace spyre::programs {

// The instructions of a program and its operands, bound to one device.
//
// Operands are tensors of the host that are made once. A run points them at the addresses that it reads from
// the correction region, in memory of the device, so a patch that has not landed gives a fault or numbers of
// the launch before. Runs of one program never overlap: Compute operations of a device don't, and a lock
// keeps apart what host callbacks run.
class Program {
public:
  // `writable` tells per slot whether the memory at its address may be written. Throws InvalidArgument for a
  // text that is malformed, or names operators, dtypes or kernels that do not exist here, or has an operator
  // that writes what it may not. What kernels write is not known.
  Program(std::span<const std::byte> text, const std::vector<bool>& writable,
          std::shared_ptr<const Library> library, card::Device& device, const card::Arena& arena);

  std::size_t slots() const { return text_.slots; }
  std::size_t instructions() const { return instructions_.size(); }

  // Executes all instructions. `corrections` holds one word per slot. Throws MemoryFault for an address that
  // is not live memory of the device, and what operators throw.
  void run(std::span<const std::byte> corrections);

private:
  struct Storage {
    std::size_t slot;
    c10::intrusive_ptr<c10::StorageImpl> impl;
    std::uint64_t bytes = 0; // of the largest operand in it
  };
  struct Operand {
    std::size_t storage;
    at::Tensor tensor;
    bool fixed; // sizes, strides and offset are literals
  };
  // An argument whose value depends on slots.
  struct Varying {
    std::size_t argument;
    const Value* value;
  };
  struct Instruction {
    std::optional<c10::OperatorHandle> op;
    KernelFunction kernel = nullptr;
    std::vector<c10::IValue> arguments; // Operator: values; varying ones are set at each run
    std::vector<Varying> varying;
    std::vector<std::size_t> pointers; // Kernel: operands
    std::vector<Number> numbers;       // Kernel
    std::vector<std::int64_t> results;
  };

  void make_operand(std::size_t index);
  void check_writable(const Value& value, const std::vector<bool>& writable, const std::string& name) const;
  void check_writable(std::size_t operand, const std::vector<bool>& writable, const std::string& name) const;
  void make_operator(Instruction& instruction, const InstructionText& text,
                     const std::vector<bool>& writable);
  void make_kernel(Instruction& instruction, const InstructionText& text, const Library* library);
  // A value as an operator takes it: numbers become tensors where the operator takes tensors.
  c10::IValue resolve(const Value& value, const c10::TypePtr& type,
                      std::span<const std::int64_t> slots) const;
  c10::IValue plain(const Value& value, const c10::TypePtr& type, std::span<const std::int64_t> slots) const;
  void place(std::span<const std::int64_t> slots);
  void shape(std::size_t index, std::span<const std::int64_t> slots);
  void execute(const Instruction& instruction, std::span<const std::int64_t> slots);
  // Operators may not give an operand other memory or other sizes. Undoes it, and says which one did.
  std::optional<std::size_t> restore_moved(std::span<const std::int64_t> slots);

  card::Device& device_;
  const card::Arena& arena_;
  const Text text_;
  std::vector<Storage> storages_;
  std::vector<Operand> operands_;
  std::vector<Instruction> instructions_;
  torch::jit::Stack stack_;
  std::mutex running_;
};

} // namespace spyre::programs
