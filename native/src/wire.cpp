// The numbers of wires, and of the interface that they are part of.
#include "wire.h"

#include <mutex>

#include "api.h"

namespace collops {
namespace {

std::mutex mutex;
std::vector<std::unique_ptr<Wire>>& wires() {
  static auto* known = new std::vector<std::unique_ptr<Wire>>;  // never destroyed: programs may still run at exit
  return *known;
}

}  // namespace

std::int64_t add_wire(std::unique_ptr<Wire> wire) {
  const std::lock_guard<std::mutex> lock(mutex);
  wires().push_back(std::move(wire));
  return static_cast<std::int64_t>(wires().size()) - 1;
}

Wire* find_wire(std::int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (number < 0 || number >= static_cast<std::int64_t>(wires().size())) return nullptr;
  return wires()[static_cast<std::size_t>(number)].get();
}

}  // namespace collops

int collops_interface() { return kInterface; }
