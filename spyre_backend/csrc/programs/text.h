// The text of a program: what its bytes mean. Written by spyre_backend/programs/text.py.
//
// A text is a sequence of 64-bit little-endian words:
//
//   header        magic, version, number of slots, storages, operands, instructions, strings
//   storages      per storage: the slot of its address
//   operands      per operand: storage, dtype (c10::ScalarType), offset in elements, rank, sizes, strides
//   instructions  Operator: name, overload (strings), arguments, results
//                 Kernel: symbol (string), arguments
//   strings       per string: length in bytes, bytes padded to words
//
// A *number* is two words: 0 and a literal, or 1 and a slot. A *slot* is a value that only a launch knows: it
// stands in the program's correction region. A *value* is a tag and what the tag asks for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace spyre::programs {

inline constexpr std::int64_t kMagic = 0x45444F4352595053; // "SPYRCODE"
inline constexpr std::int64_t kVersion = 1;

// What a correction region holds until a patch has landed: no address and no size.
inline constexpr std::uint64_t kPlaceholder = 0xF00DF00DF00D0000;

struct Number {
  bool slot = false;
  std::int64_t value = 0; // a literal, or the number of a slot

  std::int64_t at(std::span<const std::int64_t> slots) const {
    return slot ? slots[static_cast<std::size_t>(value)] : value;
  }
};

struct OperandText {
  std::size_t storage = 0;
  std::int64_t dtype = 0;
  Number offset;
  std::vector<Number> sizes;
  std::vector<Number> strides;
};

enum class Tag : std::int64_t {
  None,
  Bool,
  Int,
  Float,
  FloatSlot,
  Complex,
  String,
  Operand,
  List,
  Device,
  Default
};

struct Value {
  Tag tag = Tag::None;
  Number number;             // Bool, Int; the index of FloatSlot, String, Operand
  double real = 0;           // Float, Complex
  double imaginary = 0;      // Complex
  std::vector<Value> values; // List
};

enum class Kind : std::int64_t { Operator, Kernel };

struct InstructionText {
  Kind kind = Kind::Operator;
  std::string name;
  std::string overload; // Operator
  std::vector<Value> arguments;
  std::vector<std::int64_t> results; // Operator: per result the operand that receives it, or -1
};

struct Text {
  std::size_t slots = 0;
  std::vector<std::size_t> storages; // the slot of each address
  std::vector<OperandText> operands;
  std::vector<InstructionText> instructions;
  std::vector<std::string> strings;
};

// Throws InvalidArgument for bytes that are not a text of this version; says what is wrong and where.
Text decode(std::span<const std::byte> bytes);

} // namespace spyre::programs
