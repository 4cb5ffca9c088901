// AAN's pairs, as the arena released them.

#include <gtest/gtest.h>

#include <string>

#include "data/readers.h"

namespace luna::data {
namespace {

class AanReader : public Readers {
 protected:
  void write_splits(const std::string& train) {
    const std::string root = "lra_release/tsv_data/new_aan_pairs.";
    write(root + "train.tsv", train);
    write(root + "eval.tsv", "1.0\tC\tD\tthird paper\tfourth\n");
    write(root + "test.tsv", "0\tE\tF\tfifth\tsixth\n");
  }
};

TEST_F(AanReader, ReadsTheReleasedFiles) {
  write_splits("0.0\tA\tB\tfirst paper\tsecond paper\r\n1.0\tA\tC\tx\t\n");
  const Splits splits = load("retrieval");
  EXPECT_EQ(content(splits),
            (Content{{"0 first paper | second paper", "1 x | "},
                     {"1 third paper | fourth"},
                     {"0 fifth | sixth"}}));
  EXPECT_TRUE(splits.train->info().pairs);
}

TEST_F(AanReader, NamesWhatIsWrong) {
  expect_refused("retrieval", {"new_aan_pairs.train.tsv", "long-range-arena"});
  write_splits("0.0\tA\tB\tonly one text\n");
  expect_refused("retrieval", {"line 1: expected 5 columns", "got 4"});
  write_splits("0.0\tA\tB\tx\ty\n0.5\tA\tB\tx\ty\n");
  expect_refused("retrieval", {"line 2", "label", "\"0.5\""});
  write_splits("0.0\tA\tB\tx\ty\tz\n");
  expect_refused("retrieval", {"line 1", "got more"});
}

}  // namespace
}  // namespace luna::data
