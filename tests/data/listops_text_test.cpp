// ListOps, as the arena released it.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "data/readers.h"

namespace luna::data {
namespace {

class ListOpsReader : public Readers {
 protected:
  void write_splits(const std::string& train) {
    const std::string root = "lra_release/listops-1000/basic_";
    write(root + "train.tsv", train);
    write(root + "val.tsv", "Source\tTarget\n7\t7\n");
    write(root + "test.tsv", "Source\tTarget\n( ( [SM 9 ) 9 ) ]\t8\n");
  }
};

TEST_F(ListOpsReader, ReadsTheReleasedFiles) {
  write_splits(
      "Source\tTarget\n"
      "( ( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )\t4\n"
      "[MED 1 2 3 ]\t2\n");
  const Splits splits = load("listops");
  ASSERT_EQ(splits.train->size(), 2);
  using Ids = std::vector<uint8_t>;
  EXPECT_TRUE(std::ranges::equal((*splits.train)[0].ids,
                                 Ids{11, 2, 10, 4, 7, 14, 0, 14}));
  EXPECT_EQ((*splits.train)[0].label, 4);
  EXPECT_TRUE(std::ranges::equal((*splits.train)[1].ids, Ids{12, 1, 2, 3, 14}));
  EXPECT_TRUE(std::ranges::equal((*splits.test)[0].ids, Ids{13, 9, 9, 14}));
  EXPECT_EQ(splits.validation->size(), 1);
  EXPECT_EQ(splits.train->info().vocabulary, 15);
}

TEST_F(ListOpsReader, NamesWhatIsWrong) {
  expect_refused("listops", {"listops-1000/basic_train.tsv", "lra_release"});
  write_splits("[MAX 1 2 ]\t2\n");
  expect_refused("listops", {"line 1", "Source and Target"});
  write_splits("Source\tTarget\n");
  expect_refused("listops", {"basic_train.tsv", "expected samples"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\t2\n[SUM 1 2 ]\t3\n");
  expect_refused("listops", {"basic_train.tsv: line 3", "[SUM"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\t10\n");
  expect_refused("listops", {"line 2: Target", "expected 0 to 9"});
  write_splits("Source\tTarget\n[MAX 1 2 ]\n");
  expect_refused("listops", {"line 2: expected 2 columns"});
}

}  // namespace
}  // namespace luna::data
