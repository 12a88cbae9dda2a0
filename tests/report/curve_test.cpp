#include "snug/report/curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace snug::report {
namespace {

using testing::HasSubstr;
using testing::Not;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(RenderSvg, DrawsEachPointWithItsTitleAndEachSeriesInTheLegend) {
  const Curve curve{"steps",
                    "peak",
                    "time",
                    {{"measured", false, {{100, 1.2, "a"}, {200, 1.0, "b"}}}, {"predicted", true, {{100, 1.1, "c"}}}}};
  const std::string svg = render_svg(curve);
  EXPECT_EQ(svg.rfind("<svg", 0), 0U);
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(count(svg, "<circle"), 3);
  EXPECT_EQ(count(svg, "<polyline"), 2);
  EXPECT_THAT(svg, AllOf(HasSubstr(">measured<"), HasSubstr(">predicted<"), HasSubstr("<title>c</title>")));
  EXPECT_THAT(svg, HasSubstr("stroke-dasharray"));
}

TEST(RenderSvg, EscapesTextAndLeavesOutWhatIsNotFinite) {
  const double infinite = std::numeric_limits<double>::infinity();
  const Curve curve{
      "a < b & \"c\"", "x", "y", {{"<s>", false, {{1, 2, "<&>"}, {infinite, 1, "far"}, {1, -infinite, "low"}}}}};
  const std::string svg = render_svg(curve);
  EXPECT_EQ(count(svg, "<circle"), 1);
  EXPECT_THAT(svg,
              AllOf(HasSubstr("a &lt; b &amp; &quot;c&quot;"), HasSubstr("&lt;s&gt;"), HasSubstr("&lt;&amp;&gt;")));
  EXPECT_THAT(svg, AllOf(Not(HasSubstr("inf")), Not(HasSubstr("nan")), Not(HasSubstr("far"))));
}

TEST(RenderSvg, DrawsAnEmptyCurveAndASinglePoint) {
  EXPECT_THAT(render_svg({"nothing", "x", "y", {}}), Not(HasSubstr("nan")));
  const std::string one = render_svg({"one", "x", "y", {{"s", false, {{5, 5, "p"}}}}});
  EXPECT_EQ(count(one, "<circle"), 1);
  EXPECT_THAT(one, Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace snug::report
