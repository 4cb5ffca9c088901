#pragma once

#include <luna/distill/conversion.h>
#include <luna/report/page.h>

#include <string>

namespace luna::report {

/// What a conversion came to. `folder`: where its model lies, with phi's start,
/// for psi to be drawn; what is not there is left out.
Page conversion_page(const distill::Conversion& conversion,
                     const std::string& folder);

}  // namespace luna::report
