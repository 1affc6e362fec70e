// The card on its own: no torch. `card_test NAME...` runs tests and exits 0, or prints what is wrong with the
// first that fails and exits 1.
#include "harness.h"

#include <iostream>
#include <vector>

int main(int count, char** arguments) {
  using spyre::card::test::tests;
  std::vector<std::string> names(arguments + 1, arguments + count);
  if (names == std::vector<std::string>{"--list"}) {
    for (const auto& [name, body] : tests())
      std::cout << name << "\n";
    return 0;
  }
  if (names.empty()) {
    std::cerr << "usage: card_test --list | NAME...\n";
    return 2;
  }
  for (const std::string& name : names) {
    const auto test = tests().find(name);
    if (test == tests().end()) {
      std::cerr << "there is no test " << name << "\n";
      return 2;
    }
    try {
      test->second();
    } catch (const std::exception& error) {
      std::cerr << name << ": " << error.what() << "\n";
      return 1;
    }
  }
  return 0;
}
