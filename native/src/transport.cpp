// The table of transports, and the version of the interface.
#include "transport.h"

#include <mutex>

#include "api.h"

namespace collops {
namespace {

std::mutex mutex;
std::vector<std::unique_ptr<Transport>>& transports() {
  static auto* table = new std::vector<std::unique_ptr<Transport>>;  // never destroyed: programs may still run at exit
  return *table;
}

}  // namespace

std::int64_t add_transport(std::unique_ptr<Transport> transport) {
  const std::lock_guard<std::mutex> lock(mutex);
  transports().push_back(std::move(transport));
  return static_cast<std::int64_t>(transports().size()) - 1;
}

Transport* find_transport(std::int64_t number) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (number < 0 || number >= static_cast<std::int64_t>(transports().size())) return nullptr;
  return transports()[static_cast<std::size_t>(number)].get();
}

}  // namespace collops

int collops_interface() { return kInterface; }

void collops_watch(std::int64_t transport, Agree agree, Look look) { collops::find_transport(transport)->watch(agree, look); }

void collops_break(std::int64_t transport) { collops::find_transport(transport)->give_up(); }

std::int64_t collops_calls(std::int64_t transport) { return collops::find_transport(transport)->calls(); }
