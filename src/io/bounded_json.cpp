#include "io/bounded_json.h"

#include "io/strict_json.h"

namespace luna::io {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxBytes = size_t{64} << 20;
/// A value in a map: its node with the key, and what the allocator adds.
constexpr size_t kValueBytes = 96;

class SizeHandler : public StrictJson {
 public:
  explicit SizeHandler(const std::string& where) : StrictJson(where) {}

  bool null() override { return count(0); }
  bool boolean(bool) override { return count(0); }
  bool number_integer(number_integer_t) override { return count(0); }
  bool number_unsigned(number_unsigned_t) override { return count(0); }
  bool number_float(number_float_t, const string_t&) override {
    return count(0);
  }
  bool string(string_t&) override { return count(sizeof(string_t)); }
  bool key(string_t&) override { return true; }
  bool start_object(size_t) override { return open(); }
  bool start_array(size_t) override { return open(); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

 protected:
  std::string place() const override { return "JSON"; }
  std::string expected() const override { return "a document"; }

 private:
  bool count(size_t more) {
    bytes_ += kValueBytes + more;
    if (bytes_ > kMaxBytes) {
      refuse(place(), "a document of at most 64 MiB in memory", "a larger one");
    }
    return true;
  }
  bool open() {
    if (++depth_ > kMaxDepth) {
      refuse(place(), "at most 64 levels", "more");
    }
    return count(0);
  }
  bool close() {
    --depth_;
    return true;
  }

  size_t bytes_ = 0, depth_ = 0;
};

}  // namespace

void check_json_size(const std::string& where, std::string_view text) {
  SizeHandler(where).parse(text);
}

}  // namespace luna::io
